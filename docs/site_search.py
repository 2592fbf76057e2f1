"""
The search of the site: Sphinx's own, which also finds numbers, names, and the words that readers type.

Sphinx drops numbers from the index and from what is searched, but "409" is a word of this project. It also knows only
the words on a page. So `PHRASES` has the words for a problem that its page does not say. `search.js` ranks the results.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.search.en import SearchEnglish
from sphinx.util import logging

#: What readers type, and the page or section that answers it. It is the first result of such a search.
PHRASES = {
    "explanation/safety#clocks": ["ntp", "clock skew", "time synchronisation"],
    "explanation/how-the-queue-works": ["fifo", "fairness", "starvation"],
    "explanation/safety": ["guarantees", "jepsen", "split brain"],
    "explanation/scale": ["performance", "benchmark", "latency", "throughput"],
    "explanation/why-zookeeper": ["redis", "redlock", "etcd", "consul", "alternatives", "select_for_update"],
    "how-to/admin": ["who holds the lock", "dashboard"],
    "how-to/bound-a-hold": ["expire", "expiry", "ttl", "lock expiration"],
    "how-to/celery": ["prevent concurrent task execution"],
    "how-to/celery-beat": ["beat", "beat twice", "duplicate beat", "scheduler"],
    "how-to/deploy#build-an-image": ["image build", "docker build", "collectstatic"],
    "how-to/deploy#migrate-once": ["migrate", "migrate once", "migrations", "runpython", "ddl"],
    "how-to/deploy": ["sigkill", "worker killed", "worker crash"],
    "how-to/deploy#each-environment": ["branch", "review branch", "laptop", "staging", "environments", "tenants"],
    "how-to/fence-your-rows": ["double charge", "charge card twice", "lost update", "race", "race condition"],
    "how-to/intervene#break-a-lock": ["force release", "force unlock", "unlock", "delete lock", "release manually"],
    "how-to/intervene#purge-all-locks": ["purge", "purge all", "purge locks", "flush locks"],
    "how-to/lock-a-view": ["double submit", "double click"],
    "how-to/lock-a-view#the-answer": ["409", "error 409", "http 409", "409 conflict", "conflict", "retry-after"],
    "how-to/lock-an-api": ["drf", "django rest framework", "django-ninja", "graphql", "channels"],
    "how-to/lock-any-code": ["context manager", "cron", "async", "ready()", "ready"],
    "how-to/move-your-locks": ["redis-py", "django-redis", "cache.add", "redis lock", "is false", "== false"],
    "how-to/move-from-other-locks#kazoo": ["kazoo", "move from kazoo"],
    "how-to/move-from-other-locks#postgresql": ["pglock", "pglocks", "advisory lock", "advisory_lock"],
    "how-to/move-from-other-locks#celery-once-and-celery-singleton": ["celery-once", "celery-singleton"],
    "how-to/move-from-other-locks": ["viewflow", "lock_impl", "mayan", "handle", "db_mutex", "flock", "filelock"],
    "how-to/observe": ["prometheus", "grafana", "opentelemetry", "tracing", "monitoring"],
    "how-to/run-zookeeper": ["docker", "docker compose", "helm", "how many servers"],
    "how-to/run-zookeeper#make-certificates": ["ssl", "tls", "authentication"],
    "how-to/more-ways-to-lock#semaphores": ["semaphore", "rate limit", "throttle", "max concurrent tasks"],
    "how-to/survive-redelivery": ["celery task twice", "task executed twice", "idempotent", "visibility timeout"],
    "how-to/test-your-code": ["how to test", "unit test", "mock"],
    "how-to/transactions": ["atomic_requests", "transaction.atomic", "on_commit"],
    "how-to/troubleshooting#my-lock-does-not-come-free": [
        *("lock stuck after crash", "stuck lock", "lock not released", "lock never released", "locktimeout"),
    ],
    "how-to/unique-tasks": ["unique task", "unique tasks", "duplicate task", "deduplicate", "singleton task"],
    "how-to/when-zookeeper-is-down": ["503", "error 503", "http 503", "503 service unavailable", "outage"],
    "installation": ["install", "pip install", "setup", "getting started", "quickstart", "django-environ"],
    "installation#requirements": ["python 3.15", "windows", "macos", "supported versions", "compatibility"],
    "reference/locks#types": ["mypy", "pyright", "type checking", "typing"],
    "reference/settings": ["configuration", "environment variable"],
    "reference/settings#options-waiting": ["lock timeout"],
}

logger = logging.getLogger(__name__)


class Search(SearchEnglish):
    """The language of the search: English, with numbers."""

    # Sphinx drops a word of digits alone, here and in the browser. With a space before, it is another word, and the
    # browser still finds and marks it in the text.
    js_splitter_code = r"""
var splitQuery = (query) =>
  (query.match(/[\p{Letter}\p{Number}_\p{Emoji_Presentation}]+/gu) || [])
    .map((word) => (/^\d+$/.test(word) ? ` ${word}` : word));
"""

    def split(self, text):
        return [f" {word}" if word.isdecimal() else word for word in super().split(text)]


def definitions(doctree):
    """Yield each name that a page of the reference defines, and its section: code in bold, or the id of a check."""
    for strong in doctree.findall(nodes.strong):
        name = re.match(r"[\w.]+", strong.astext())
        check = name and re.fullmatch(r"[EW]\d{3}", name[0])
        if check or (name and isinstance(strong[0], nodes.literal)):
            section = strong
            while not isinstance(section, nodes.section):
                section = section.parent
            for spelling in (name[0], f"zklock.{name[0]}") if check else (name[0],):
                yield spelling.lower(), section["ids"][0]


def add_phrases(app, doctree):
    """Add the phrases of a page to the index, and their words to the page: readers type them in any order."""
    phrases = app.config.search_phrases
    here = [
        (phrase, section)
        for page, _, section in (target.partition("#") for target in phrases)
        if page == app.env.docname
        for phrase in phrases[f"{page}#{section}" if section else page]
    ]
    for _, section in here:
        if section and section not in doctree.ids:
            logger.warning("search_phrases names the section %s, which is not there", section, location=doctree)
    words = Search({}).split(" ".join(phrase for phrase, _ in here))
    if app.env.docname.startswith("reference/"):
        elsewhere = set().union(*phrases.values())
        here += [(name, section) for name, section in definitions(doctree) if name not in elsewhere]
    if words:
        doctree += nodes.meta(name="keywords", content=",".join(words))
    doctree += addnodes.index(entries=[("single", phrase, section, "main", None) for phrase, section in here])


def setup(app):
    app.add_search_language(Search)
    app.add_config_value("search_phrases", PHRASES, "env")
    app.connect("doctree-read", add_phrases)
