"""CloudFormation stack with the resources that jobs need in an account."""
