{{- /* "true" where the value services, rather than config and node.config, switches Services on. The
ConfigMap of the cluster tells what an earlier auto was. One of a release without the value has
none: an upgrade starts no second proxy beside kube-proxy. */ -}}
{{- define "kuryr.services" -}}
{{- $services := printf "%v" .Values.services -}}
{{- if eq $services "true" -}}
true
{{- else if eq $services "auto" -}}
{{- $said := false -}}
{{- with .Values.config -}}
{{- if hasKey . "controller.services" }}{{ $said = true }}{{ end -}}
{{- with index . "controller" }}{{ if hasKey . "services" }}{{ $said = true }}{{ end }}{{ end -}}
{{- end -}}
{{- with .Values.node.config -}}
{{- if hasKey . "node.services" }}{{ $said = true }}{{ end -}}
{{- with index . "node" }}{{ if hasKey . "services" }}{{ $said = true }}{{ end }}{{ end -}}
{{- end -}}
{{- $there := lookup "v1" "ConfigMap" .Release.Namespace "kuryr" -}}
{{- if not $said -}}
{{- if not $there -}}
true
{{- else -}}
{{- with index $there "data" }}{{ if eq (printf "%v" (index . "services")) "true" }}true{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
