{{- define "kuryr.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}
{{- end }}
{{- /* Address of the API server: "host: …" and "port: …", or nothing, and then pods use the ClusterIP.
The first of these that exists counts:
1. The value apiServer.
2. The address in the cluster's Deployment. An upgrade changes no address, and sets none.
3. The server in kubeadm's ConfigMap cluster-info, to which nodes connect when they join.
4. The endpoint of the Service kubernetes, if there is one. Of several, none is chosen, because Kuryr
   would fail with that server. */ -}}
{{- define "kuryr.apiAddress" -}}
{{- $host := .Values.apiServer.host -}}
{{- $port := .Values.apiServer.port -}}
{{- if not (and $host $port) -}}
{{- $deployment := lookup "apps/v1" "Deployment" .Release.Namespace "kuryr-controller" -}}
{{- if $deployment -}}
{{- range $deployment.spec.template.spec.containers -}}
{{- range index . "env" -}}
{{- if eq .name "KUBERNETES_SERVICE_HOST" }}{{ $host = $host | default .value }}{{ end -}}
{{- if eq .name "KUBERNETES_SERVICE_PORT" }}{{ $port = $port | default .value }}{{ end -}}
{{- end -}}
{{- end -}}
{{- else if not (or $host $port) -}}
{{- $server := "" -}}
{{- with index (lookup "v1" "ConfigMap" "kube-public" "cluster-info") "data" -}}
{{- with index . "kubeconfig" -}}
{{- range index (fromYaml .) "clusters" -}}
{{- with index . "cluster" }}{{ $server = index . "server" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $server = printf "%v" ($server | default "none") -}}
{{- $url := "^https://(?:\\[([0-9A-Fa-f:.]+)\\]|([^][:/@?#]+))(?::([0-9]+))?/?$" -}}
{{- $name := regexReplaceAll $url $server "${1}${2}" -}}
{{- if ne $name $server -}}
{{- $host = $name -}}
{{- $port = regexReplaceAll $url $server "${3}" | default "443" -}}
{{- else -}}
{{- with lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes" -}}
{{- $slice := . -}}
{{- with index . "endpoints" -}}
{{- if eq (len .) 1 -}}
{{- range . }}{{ range .addresses }}{{ $host = . }}{{ end }}{{ end -}}
{{- range $slice.ports }}{{ $port = .port }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $host }}{{ printf "host: %q\n" $host }}{{ end -}}
{{- if $port }}{{ printf "port: \"%v\"\n" $port }}{{ end -}}
{{- end }}
{{- define "kuryr.apiServer" }}
{{- $address := include "kuryr.apiAddress" . | fromYaml }}
{{- if index $address "host" }}
            - {name: KUBERNETES_SERVICE_HOST, value: {{ index $address "host" | quote }}}
{{- end }}
{{- if index $address "port" }}
            - {name: KUBERNETES_SERVICE_PORT, value: {{ index $address "port" | quote }}}
{{- end }}
{{- end }}
{{- define "kuryr.readiness" }}
          readinessProbe:
            exec: {command: [/usr/bin/kuryr, --socket, {{ . }}, status]}
            initialDelaySeconds: 2
            timeoutSeconds: 10
{{- end }}
