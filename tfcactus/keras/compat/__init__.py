"""What differs between versions of Keras and TensorFlow."""
