"""An emulated CloudFormation that runs farcall's own template."""
