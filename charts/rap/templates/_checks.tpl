{{/* What a schema cannot say: values that only make sense together, and what the cluster must have. */}}
{{- define "rap.checks" -}}
{{- if and (gt (int .Values.replicaCount) 1) (not .Values.leaderElection.enabled) -}}
{{- fail "replicaCount: more than one replica needs leaderElection.enabled=true, or two would write at once" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled: a ServiceMonitor finds the operator through its Service; set metrics.service.enabled=true" -}}
{{- end -}}
{{- if and .Values.metrics.bearerToken.secretName (not .Values.metrics.tls.secretName) -}}
{{- fail "metrics.bearerToken.secretName: a token over plain HTTP can be read on the way; set metrics.tls.secretName too" -}}
{{- end -}}
{{- end }}

{{/* dict "root" $ "value" "metrics.serviceMonitor.enabled" "kind" "ServiceMonitor": fails where the kind is not served. */}}
{{- define "rap.needsMonitoring" -}}
{{- if not (.root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}
{{- fail (printf "%s: this cluster does not serve monitoring.coreos.com/v1 (%s); install the Prometheus operator's CRDs first, or set it to false. With `helm template` add --api-versions monitoring.coreos.com/v1" .value .kind) -}}
{{- end -}}
{{- end }}
