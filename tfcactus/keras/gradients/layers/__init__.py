"""How each kind of layer has its gradients per example."""
