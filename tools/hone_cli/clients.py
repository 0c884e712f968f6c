"""Calls to the services, with errors as sentences."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hone.console.v1 import console_pb2_grpc
from hone.grader.v1 import grader_pb2_grpc
from hone.learner.v1 import learner_pb2_grpc

from hone_cli.addresses import AddressBook
from hone_cli.errors import service_error
from servicekit.channels import connect
from servicekit.errors import HoneError

_TIMEOUT_SECONDS = 30.0


@asynccontextmanager
async def learner_client(
    book: AddressBook, *, own: bool = True
) -> AsyncIterator["learner_pb2_grpc.LearnerServiceAsyncStub"]:
    """A client of the learner; errors inside the block come out as CliError."""
    address = book.find("learner", own=own)
    async with connect(address, default_timeout_seconds=_TIMEOUT_SECONDS) as channel:
        try:
            yield learner_pb2_grpc.LearnerServiceStub(channel)
        except HoneError as error:
            raise service_error(error, "learner", address) from error


@asynccontextmanager
async def console_client(
    book: AddressBook, *, own: bool = True
) -> AsyncIterator["console_pb2_grpc.ConsoleServiceAsyncStub"]:
    """A client of the console; errors inside the block come out as CliError."""
    address = book.find("console", own=own)
    async with connect(
        address,
        default_timeout_seconds=_TIMEOUT_SECONDS,
        max_message_bytes=64 * 1024 * 1024,
    ) as channel:
        try:
            yield console_pb2_grpc.ConsoleServiceStub(channel)
        except HoneError as error:
            raise service_error(error, "console", address) from error


@asynccontextmanager
async def grader_client(
    book: AddressBook,
) -> AsyncIterator["grader_pb2_grpc.GraderServiceAsyncStub"]:
    """A client of the grader; errors inside the block stay typed, as callers read their violations."""
    async with connect(book.find("grader", own=False), default_timeout_seconds=10.0) as channel:
        yield grader_pb2_grpc.GraderServiceStub(channel)
