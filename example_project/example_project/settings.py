"""Settings from the environment (django-environ); the defaults need no service except ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import environ

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
VAR = Path(env.str("SHOP_VAR", default=str(BASE_DIR.parent / ".demo" / "shop")))
for folder in ("queue", "control", "processed", "results"):
    (VAR / folder).mkdir(parents=True, exist_ok=True)

# The locks. `inventory` guards the read-modify-write of one item's stock, for views and tasks alike.
ZKLOCK = {
    "URL": env.str("ZKLOCK_URL", default="zk://127.0.0.1:2181/shop"),
    # A purchase is cheap to repeat, so it is aborted at the first doubt. By default, it would go on within the lease.
    "LOCKS": {"inventory": {"path": "inventory/{sku}", "timeout": 5, "grace": 0}},
}
# To see what goes wrong: "1" uses no locks at all; "broken" ones are granted to everybody, so only fences are left.
SHOP_UNSAFE = env.str("UNSAFE", default="0").lower()
SHOP_THINK_TIME = env.float("SHOP_THINK_TIME", default=0.25)  # seconds between reading the stock and writing it

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="not-a-secret: this shop sells nothing real")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_zklock",
    "django_zklock.contrib.events",  # the history of the locks, in the admin
    "django_zklock.contrib.metrics",  # for Prometheus, at /metrics
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_zklock.middleware.LockConflictMiddleware",
]
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": env.db("DATABASE_URL", default=f"sqlite:///{VAR / 'shop.sqlite3'}")}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    }

CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default="filesystem://localhost")
CELERY_RESULT_BACKEND = env.str("CELERY_RESULT_BACKEND", default=f"file://{VAR / 'results'}")
if CELERY_BROKER_URL.startswith("filesystem:"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(VAR / "queue"),
        "data_folder_out": str(VAR / "queue"),
        "control_folder": str(VAR / "control"),
        "processed_folder": str(VAR / "processed"),
        "store_processed": True,  # else kombu moves each message through the system's /tmp
        "polling_interval": 0.1,
    }
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False  # the file system is no place for broadcasts
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
