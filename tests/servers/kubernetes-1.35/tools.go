//go:build tools

// Package tools names the commands that the test servers are built from, so that go.mod and go.sum
// pin them. Nothing compiles this file: tests/servers/build.py builds the commands themselves.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
