"""Expressions with whole numbers: their value and the steps that a person would take, exactly."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

OPERATORS: Mapping[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on two numbers."""

    expression: str
    result: int


def steps_of(expression: str) -> tuple[Step, ...]:
    """Returns the operations in the order in which they can be done; the last result is the value.

    Raises:
        ValueError: the expression holds anything but whole numbers, +, - and *.
    """
    steps: list[Step] = []

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp() if type(node.op) in OPERATORS:
                sign, apply = OPERATORS[type(node.op)]
                left, right = value(node.left), value(node.right)
                steps.append(Step(f"{left}{sign}{right}", apply(left, right)))
                return steps[-1].result
        raise ValueError(f"{expression!r}: only whole numbers, +, - and * are allowed")

    value(ast.parse(expression, mode="eval").body)
    return tuple(steps)
