"""The site's process. It writes its address and its sessions as a line of JSON, and serves until it is ended."""

import json
import socketserver
from wsgiref.simple_server import WSGIServer

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import WSGIRequestHandler
from django.core.wsgi import get_wsgi_application


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread for each request, as the pages of several visitors are asked for at once."""

    daemon_threads = True
    request_queue_size = 50


def main():
    application = get_wsgi_application()
    from support.browser.accounts import enrol  # after Django is set up

    call_command("migrate", verbosity=0)
    sessions = enrol()
    server = Server(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(StaticFilesHandler(application))
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "sessions": sessions}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
