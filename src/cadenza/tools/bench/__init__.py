"""Speed, measured: the same work on cadenza and on other libraries, and what each part of a step costs."""
