#!/usr/bin/python3
"""Serves Octavia's own WSGI application, a thread for each request: octavia-serve.py CONFIGURATION ADDRESS PORT."""
import socketserver
import sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

configuration, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
from octavia.api import app  # noqa: E402


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


application = app.setup_app(argv=["octavia-api", "--config-file", configuration])
make_server(address, port, application, Server, WSGIRequestHandler).serve_forever()
