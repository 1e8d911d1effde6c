"""Modules inference_pb2 (messages) and inference_pb2_grpc (stubs), of inference.proto."""
