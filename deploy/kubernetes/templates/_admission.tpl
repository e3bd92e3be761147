{{- define "kuryr.byANode" }}
  matchConditions:
    - name: by-a-node
      expression: request.userInfo.username == "system:serviceaccount:{{ .Release.Namespace }}:kuryr-node"
{{- end }}
{{- define "kuryr.byRaven" }}
  matchConditions:
    - name: by-raven
      expression: request.userInfo.username == "system:serviceaccount:{{ .Release.Namespace }}:kuryr-controller"
{{- end }}
{{- define "kuryr.nodeVariables" }}
    # The API server puts the node into what it knows of a token that is bound to a pod.
    - name: extra
      expression: 'has(request.userInfo.extra) && "authentication.kubernetes.io/node-name" in request.userInfo.extra ? request.userInfo.extra["authentication.kubernetes.io/node-name"] : []'
    - name: node
      expression: 'size(variables.extra) == 1 ? variables.extra[0] : ""'
    - name: labels
      expression: 'has(object.metadata.labels) ? object.metadata.labels : {}'
    - name: oldLabels
      expression: 'has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}'
    - name: annotations
      expression: 'has(object.metadata.annotations) ? object.metadata.annotations : {}'
    - name: oldAnnotations
      expression: 'has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}'
{{- end }}
{{- define "kuryr.nodeMetadata" }}
    - expression: variables.node != ""
      message: this token is not bound to a node
    - expression: >-
        variables.labels.all(k, k == variables.label || (k in variables.oldLabels && variables.oldLabels[k] == variables.labels[k]))
        && variables.oldLabels.all(k, k == variables.label || k in variables.labels)
      message: a node's daemon changes no label but openstack.org/portStatus of KuryrPorts
    - expression: >-
        variables.annotations.all(k, k == variables.annotation || (k in variables.oldAnnotations && variables.oldAnnotations[k] == variables.annotations[k]))
        && variables.oldAnnotations.all(k, k == variables.annotation || k in variables.annotations)
      message: a node's daemon changes no annotation but openstack.org/kuryr-vif of pods
    - expression: >-
        object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
        && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
      message: a node's daemon changes no finalizers and no owners
{{- end }}
{{- define "kuryr.binding" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ . }}
  labels: {app.kubernetes.io/part-of: kuryr}
spec:
  policyName: {{ . }}
  validationActions: [Deny]
{{- end }}
