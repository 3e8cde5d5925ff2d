{{/* The operator's command line. */}}
{{- define "rap.arguments" -}}
{{- with .Values.watchNamespaces }}
- --namespaces={{ uniq . | join "," }}
{{- end }}
- --workers={{ .Values.operator.workers }}
- --log-level={{ .Values.operator.logLevel }}
- --kube-api-qps={{ .Values.operator.kubeApiQps }}
- --scrape-interval-seconds={{ .Values.operator.scrapeIntervalSeconds }}
- --force-delete-after-seconds={{ .Values.operator.forceDeleteAfterSeconds }}
- --rollback-after-seconds={{ .Values.operator.rollbackAfterSeconds }}
{{- with .Values.replanning.prometheusUrl }}
- --prometheus-url={{ . }}
{{- end }}
- --max-switching={{ .Values.replanning.maxSwitching }}
- --search-seconds={{ .Values.replanning.searchSeconds }}
- --search-memory-mib={{ int .Values.replanning.searchMemoryMib }}
- --metrics-port={{ .Values.metrics.port }}
{{- if .Values.metrics.tls.secretName }}
- --metrics-tls-cert=/etc/rap/metrics/tls/tls.crt
- --metrics-tls-key=/etc/rap/metrics/tls/tls.key
{{- end }}
{{- if .Values.metrics.bearerToken.secretName }}
- --metrics-token-file=/etc/rap/metrics/token/token
{{- end }}
{{- if .Values.trainers.metrics.secretName }}
- --scrape-ca-file=/etc/rap/trainers/ca.crt
- --scrape-token-file=/etc/rap/trainers/token
{{- end }}
{{- if .Values.leaderElection.enabled }}
- --lease-name={{ include "rap.leaseName" . }}
- --lease-namespace={{ .Release.Namespace }}
{{- else }}
- --no-lease
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}
