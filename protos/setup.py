"""Builds the Python stubs from the .proto files, so that no generated code is committed."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildStubs(build_py):
    """Runs protoc with the Python, gRPC and mypy plugins into the build folder."""

    def run(self) -> None:
        """Generates every stub and marks each folder as a typed package."""
        import grpc_tools
        from grpc_tools import protoc

        super().run()
        out = Path(self.build_lib)
        out.mkdir(parents=True, exist_ok=True)
        protos = sorted(HERE.glob("hone/**/*.proto"))
        bin_dir = Path(sys.executable).parent
        arguments = ["protoc", f"-I{HERE}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
        for plugin in ("mypy", "mypy_grpc"):
            path = next((p / f"protoc-gen-{plugin}" for p in self._bin_dirs(bin_dir)), None)
            if path is not None:
                arguments.append(f"--plugin=protoc-gen-{plugin}={path}")
        arguments += [
            f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")
        ]
        if protoc.main([*arguments, *(str(p.relative_to(HERE)) for p in protos)]) != 0:
            raise SystemExit("protoc failed; its messages stand above")
        for folder in {parent for p in out.glob("hone/**/*_pb2.py") for parent in p.parents}:
            if out in folder.parents:
                (folder / "__init__.py").touch()
        (out / "hone" / "py.typed").touch()

    @staticmethod
    def _bin_dirs(default: Path) -> list[Path]:
        """Where the mypy plugins may lie: beside the interpreter, or in the build environment."""
        import os

        folders = [default, *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
        return [f for f in folders if (f / "protoc-gen-mypy").exists()]


setup(cmdclass={"build_py": BuildStubs})
