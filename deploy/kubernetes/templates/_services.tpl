{{- /* What the value services, rather than config and node.config, switches on: "raven: true",
"nodes: true", both or nothing. auto keeps what the settings in the cluster's ConfigMap say, whether
an earlier auto or config and node.config wrote them: an upgrade starts no second proxy beside
kube-proxy, and stops none. */ -}}
{{- define "kuryr.services" -}}
{{- $services := printf "%v" .Values.services -}}
{{- $raven := eq $services "true" -}}
{{- $nodes := $raven -}}
{{- if eq $services "auto" -}}
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
{{- $raven = true }}{{ $nodes = true -}}
{{- else -}}
{{- with index $there "data" -}}
{{- with index . "kuryr.yaml" -}}
{{- $all := fromYaml . -}}
{{- if eq (printf "%v" (index $all "controller.services")) "true" }}{{ $raven = true }}{{ end -}}
{{- with index $all "controller" -}}
{{- if eq (printf "%v" (index . "services")) "true" }}{{ $raven = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with index . "node.yaml" -}}
{{- $all := fromYaml . -}}
{{- if eq (printf "%v" (index $all "node.services")) "true" }}{{ $nodes = true }}{{ end -}}
{{- with index $all "node" -}}
{{- if eq (printf "%v" (index . "services")) "true" }}{{ $nodes = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $raven }}{{ print "raven: true\n" }}{{ end -}}
{{- if $nodes }}{{ print "nodes: true\n" }}{{ end -}}
{{- end }}
