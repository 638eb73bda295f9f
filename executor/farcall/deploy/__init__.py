"""CloudFormation: the stack that has all that jobs need in an account."""
