"""What is checked, by capability. Each check is a function that raises Broken, with the sentence that it holds."""
