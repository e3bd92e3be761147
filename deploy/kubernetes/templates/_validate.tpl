{{- /* Refuses values that cannot work in the cluster that is asked, for both installers. A cluster that
has Kuryr is not refused: its pods run. Nor is one where a node selector names the daemon's nodes. */ -}}
{{- define "kuryr.validate" -}}
{{- if and (eq .Values.provider "embedded") (not .Values.node.nodeSelector) -}}
{{- if not (lookup "v1" "ConfigMap" .Release.Namespace "kuryr") -}}
{{- with index (lookup "v1" "Node" "" "") "items" -}}
{{- if ne (len .) 1 -}}
{{- fail (printf "value provider: embedded serves one node, and the cluster has %d; use neutron" (len .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
