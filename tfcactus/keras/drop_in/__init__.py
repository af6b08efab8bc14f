"""Drop-in replacements for the optimizers and models of TensorFlow Privacy."""
