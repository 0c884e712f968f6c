"""Engines that sample from a policy, one file per implementation behind `base.Engine`."""
