"""The emulated CloudFormation: stacks of the resources that farcall's own template has."""
