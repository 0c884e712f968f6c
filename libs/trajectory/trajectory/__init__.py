"""What a rollout is: types, token records, rendering, and conversion to and from protobuf."""
