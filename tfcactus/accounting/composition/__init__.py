"""What composed releases cost: one method a file, chosen by `composition`."""
