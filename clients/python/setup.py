"""Messages and stubs of tessera.v1, generated from the proto when the package is built."""

import importlib.metadata
import pathlib

import setuptools
from setuptools.command.build_py import build_py

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"


class BuildStubs(build_py):
    def run(self):
        super().run()
        import grpc_tools
        from grpc_tools import protoc

        include = pathlib.Path(grpc_tools.__file__).parent / "_proto"
        failed = protoc.main([
            "protoc", f"-I{PROTO}", f"-I{include}", f"--python_out={self.build_lib}",
            f"--pyi_out={self.build_lib}", f"--grpc_python_out={self.build_lib}",
            str(PROTO / "tessera/v1/inference.proto")])
        if failed:
            raise SystemExit("the proto cannot be compiled")


# Generated code needs libraries that are not older than its generator.
setuptools.setup(
    name="tessera-client",
    version="0.1.0",
    description="gRPC client of tessera-server",
    license="Apache-2.0",
    python_requires=">=3.9",
    package_dir={"": "src"},
    packages=["tessera", "tessera.v1"],
    install_requires=[f"grpcio>={importlib.metadata.version('grpcio-tools')}",
                      f"protobuf>={importlib.metadata.version('protobuf')}"],
    cmdclass={"build_py": BuildStubs},
)
