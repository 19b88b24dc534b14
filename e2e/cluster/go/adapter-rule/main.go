// Command adapter-rule answers a question of a HorizontalPodAutoscaler as prometheus-adapter would,
// by its own code: adapter-rule CONFIG PROMETHEUS NAMESPACE METRIC SELECTOR.
//
// It prints the external metrics that the adapter would list, and then the values that it gives.
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
	"sigs.k8s.io/prometheus-adapter/pkg/client"
	"sigs.k8s.io/prometheus-adapter/pkg/config"
	external "sigs.k8s.io/prometheus-adapter/pkg/external-provider"
	"sigs.k8s.io/prometheus-adapter/pkg/naming"
)

func run(file, address, namespace, metric, selector string) error {
	rules, err := config.FromFile(file)
	if err != nil {
		return err
	}
	core := schema.GroupVersion{Version: "v1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{core})
	mapper.Add(core.WithKind("Namespace"), meta.RESTScopeRoot)
	namers, err := naming.NamersFromConfig(rules.ExternalRules, mapper)
	if err != nil {
		return err
	}
	base, err := url.Parse(address)
	if err != nil {
		return err
	}
	prometheus := client.NewClient(http.DefaultClient, base, nil, http.MethodGet)
	answers, lister := external.NewExternalPrometheusProvider(prometheus, namers, time.Hour, time.Hour)
	lister.(interface{ UpdateNow() }).UpdateNow()
	for _, listed := range answers.ListAllExternalMetrics() {
		fmt.Println("metric", listed.Metric)
	}
	chosen, err := labels.Parse(selector)
	if err != nil {
		return err
	}
	info := provider.ExternalMetricInfo{Metric: metric}
	values, err := answers.GetExternalMetric(context.Background(), namespace, chosen, info)
	if err != nil {
		return err
	}
	for _, value := range values.Items {
		fmt.Println("value", value.Value.AsApproximateFloat64())
	}
	return nil
}

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "adapter-rule CONFIG PROMETHEUS NAMESPACE METRIC SELECTOR")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
