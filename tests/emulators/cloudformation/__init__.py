"""The embedded CloudFormation: stacks of the resources that farcall's own template has."""
