#!/usr/bin/python3
"""Serves Keystone's own WSGI application, a thread for each request: keystone-serve.py ADDRESS PORT."""
import socketserver
import sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

address, port = sys.argv[1], int(sys.argv[2])
del sys.argv[1:]  # Keystone reads it too
from keystone.server.wsgi import initialize_public_application  # noqa: E402


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


make_server(address, port, initialize_public_application(), Server, WSGIRequestHandler).serve_forever()
