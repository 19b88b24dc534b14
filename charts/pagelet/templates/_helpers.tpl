{{- define "pagelet.name" -}}
{{- default "pagelet-operator" .Values.nameOverride -}}
{{- end -}}

{{- define "pagelet.selector" -}}
app.kubernetes.io/name: pagelet-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pagelet.labels" -}}
{{ include "pagelet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* What the operator does in a namespace that it serves. A verb that is not here it cannot do. */}}
{{- define "pagelet.rules" -}}
- apiGroups: [pagelet.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [pagelet.dev]
  resources: [inferenceservices/status, inferenceservices/scale]
  verbs: [patch]
# Made for services, by server-side apply, and deleted when they are no longer wanted.
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies, ingresses]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [list, watch, create, patch, delete]
# A router may see where its replicas are; nobody can give away a right that they do not have.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
# State of pods, and the cost of losing one.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end -}}
