from servicekit.clock import steady_clock


def test_a_wall_clock_that_is_set_moves_no_lease() -> None:
    wall, monotonic = [1_800_000_000.0], [50.0]
    clock = steady_clock(lambda: wall[0], lambda: monotonic[0])
    assert clock() == 1_800_000_000.0
    wall[0] += 3600.0
    monotonic[0] += 2.0
    assert clock() == 1_800_000_002.0
