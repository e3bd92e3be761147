#!/usr/bin/python3
"""Serves Octavia's own WSGI application, a thread for each request: octavia-serve.py CONFIGURATION ADDRESS PORT.

Where the provider amphora is enabled, its worker runs here too, for the message bus is one of this process. Its amphorae are no machines: nothing is built,
and nothing is told to it. Their ports, the VIPs' and those ports' security groups are Neutron's, by Octavia's own network driver.
"""
import functools
import socketserver
import sys
import types
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

configuration, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
from octavia.api import app  # noqa: E402
from octavia.common import utils  # noqa: E402
from octavia.compute.drivers.noop_driver.driver import NoopComputeDriver  # noqa: E402
from octavia.controller.queue.v2.consumer import ConsumerService  # noqa: E402
from oslo_config import cfg  # noqa: E402


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


def neutron():
    return utils.get_network_driver().neutron_client


def attach(self, compute_id, network_id=None, ip_address=None, port_id=None):
    """Makes a port a machine's, as Nova does."""
    if port_id:
        taken = neutron().update_port(port_id, {"port": {"device_id": compute_id}})["port"]
    else:
        taken = neutron().create_port({"port": {"network_id": network_id, "device_id": compute_id}})["port"]
    return types.SimpleNamespace(net_id=taken["network_id"], port_id=taken["id"], fixed_ips=taken["fixed_ips"])


def detach(self, compute_id, port_id):
    neutron().update_port(port_id, {"port": {"device_id": ""}})


def delete(self, compute_id):
    for p in neutron().list_ports(device_id=compute_id)["ports"]:
        neutron().delete_port(p["id"])


NoopComputeDriver.attach_network_or_port, NoopComputeDriver.detach_port, NoopComputeDriver.delete = attach, detach, delete
# Octavia makes one for each task, and each asks Neutron for its extensions.
utils.get_network_driver = functools.lru_cache(utils.get_network_driver)

application = app.setup_app(argv=["octavia-api", "--config-file", configuration])
if "amphora" in cfg.CONF.api_settings.enabled_provider_drivers:
    ConsumerService(0, cfg.CONF).run()
make_server(address, port, application, Server, WSGIRequestHandler).serve_forever()
