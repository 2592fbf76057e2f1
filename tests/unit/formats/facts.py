"""The names and numbers of this release that user code, other programs and older databases rely on."""

import ast
import configparser
import contextlib
import functools
import hashlib
import inspect
import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

from django.apps import apps
from django.test import RequestFactory
from google.protobuf.descriptor import FieldDescriptor
from prometheus_client import CollectorRegistry

import django_zklock
import zklock_client
from django_zklock import checks, conf, signals
from django_zklock.conf import arguments, leases
from django_zklock.conf import settings as zklock_settings
from django_zklock.contrib.celery import control, events
from django_zklock.contrib.leases.refusal import Code
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2
from django_zklock.contrib.metrics.prometheus import Metrics
from django_zklock.exceptions import LockBusy, LockLost, ZooKeeperUnavailable
from django_zklock.fencing import model, views
from django_zklock.http import responses
from django_zklock.inspection import info
from django_zklock.management.commands.zklock import Command
from django_zklock.management.exit_codes import ExitCode
from django_zklock.management.zklock import doctor
from django_zklock.models import Lock
from django_zklock.report import verdict
from django_zklock.report.servers import Split

PACKAGE = Path(str(django_zklock.__file__)).parent
ROOT = Path(__file__).parents[3]
INTERNAL = {"conf", "report.lazy", "names.template"}
"""Modules whose `__all__` is for this package alone."""
DOCUMENTS = [
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "explanation"),
    ROOT / "README.md",
    *sorted((ROOT / "examples").rglob("*.py")),
]
"""The pages that say what users import. Those of the explanation name internal modules, too."""
_IMPORT = re.compile(r"from (django_zklock[\w.]*) import (\([^)]*\)|[\w ,]+)")
_DOTTED = re.compile(r"(?<![\w/.-])django_zklock(?:\.\w+)+(?::[A-Z]\w+)?")


_MODULE = re.compile(r"(?:\"|\bimport )(django_zklock[\w.]*)")


def exports():
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.parse(text).body if "__all__" in text else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                parts = path.relative_to(PACKAGE).with_suffix("").parts
                modules[".".join(part for part in parts if part != "__init__")] = set(ast.literal_eval(node.value))
    return modules


@functools.cache
def public():
    """Return the public names of each module: those in `__all__`, and those that a document imports or names."""
    names = {
        f"django_zklock.{module}".rstrip("."): set(own) for module, own in exports().items() if module not in INTERNAL
    }
    for path in DOCUMENTS:
        text = path.read_text()
        for module, imported in _IMPORT.findall(text):
            words = re.sub(r"#.*|\bas \w+", "", imported)
            names.setdefault(module, set()).update(re.findall(r"\w+", words))
        for dotted in _DOTTED.findall(text):
            module, _, name = dotted.replace(":", ".").rpartition(".")
            if (value := found(module, name)) is not None and not inspect.ismodule(value):
                names.setdefault(module, set()).add(name)
    names["django_zklock.signals"].update(signal_arguments())
    names["django_zklock.locks.multi"] = {"MultiHold", "MultiLock"}
    names["zklock_client"] = set(zklock_client.__all__)
    return names


def apps_and_modules():
    """Return the modules that projects install as apps, or import."""
    texts = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    return sorted({name for text in texts for name in _MODULE.findall(text) if is_module(name)})


def is_module(name):
    with contextlib.suppress(ImportError):
        return bool(import_module(name))
    return False


def found(module, name):
    with contextlib.suppress(ImportError):
        return getattr(import_module(module), name, None)
    return None


def classes_and_functions():
    for module, names in public().items():
        for name in names:
            value = found(module, name)
            if callable(value):
                yield f"{module}.{name}", value


def attributes():
    documented = words_of(*(path for path in DOCUMENTS if path.parent.name == "reference"))
    made = {
        name: sorted(
            {
                attribute
                for kind in value.__mro__
                if kind.__module__.startswith(("django_zklock", "zklock_client"))
                for attribute in {**vars(kind), **getattr(kind, "__annotations__", {})}
                if attribute in documented and not attribute.startswith("_") and attribute not in _OF_DJANGO
            }
        )
        for name, value in classes_and_functions()
        if inspect.isclass(value)
    }
    return {name: names for name, names in made.items() if names}


_OF_DJANGO = ("DoesNotExist", "MultipleObjectsReturned", "objects", "pre_save", "setUp", "setUpClass")


def words_of(*pages):
    code = " ".join(
        text for page in pages for text in re.findall(r"```.*?```|`[^`]+`", page.read_text(), flags=re.DOTALL)
    )
    return set(re.findall(r"[a-zA-Z_]\w*", code))


def parameters():
    made = {}
    for name, value in classes_and_functions():
        if inspect.isfunction(value) or name.endswith((".FenceVerifier", ".DatabaseTokens", ".DevServer")):
            made[name] = [
                parameter for parameter in inspect.signature(value).parameters if not parameter.startswith("_")
            ]
    return made


def signal_arguments():
    return dict(re.findall(r"^`(\w+)\(([\w, ]*)\)`$", str(signals.__doc__), flags=re.MULTILINE))


def setting_keys():
    celery = "\n".join(path.read_text() for path in (PACKAGE / "contrib" / "celery").rglob("*.py"))
    run = (PACKAGE / "management/zklock/run.py").read_text()
    return {
        "ZKLOCK": sorted({*zklock_settings._KEYS, *zklock_settings._DICTS}),
        "TLS": sorted(zklock_settings._TLS_KEYS),
        "query of the URL": sorted(zklock_settings._QUERY_KEYS),
        "LEASES": sorted({"CLIENTS", *leases._TERMS}),
        "a client of LEASES": sorted(leases._CLIENT_KEYS),
        "Celery": sorted(set(re.findall(r'conf\.get\("(zklock_\w+)"', celery))),
        "environment of run": sorted(set(re.findall(r'"(ZKLOCK_\w+)":', run))),
    }


def options():
    columns = {
        "zk_lock": arguments.LockArguments,
        "zk_read": arguments.SideArguments,
        "zk_leader": arguments.LeaderArguments,
        "zk_locked": arguments.LockedOptions,
        "LOCKS and DEFAULTS": SimpleNamespace(__annotations__=dict.fromkeys(arguments.OPTION_NAMES)),
    }
    return {name: sorted(kind.__annotations__) for name, kind in columns.items()}


def words():
    kinds = [*("AbortOn", "Compat", "KindOfLock", "TaskPolicy", "FunctionPolicy")]
    kinds += [*("OnDuplicate", "OnLost", "ReleaseOn", "UniqueUntil")]
    return {name: sorted(get_args(getattr(arguments, name))) for name in kinds}


def check_ids():
    sources = [*Path(conf.__file__).parent.glob("*.py"), Path(checks.__file__), Path(str(model.__file__))]
    return sorted({code for path in sources for code in re.findall(r'"(?:zklock\.)?([EW]\d{3})"', path.read_text())})


def sub_commands():
    parser = Command().create_parser("manage.py", "zklock")
    (choices,) = (action.choices for action in parser._actions if action.dest == "subcommand")
    django_has = {option for action in parser._actions for option in action.option_strings}
    return {
        name: sorted(
            option
            for action in subparser._actions
            for option in action.option_strings or [action.dest]
            if option not in django_has
        )
        for name, subparser in dict(choices or ()).items()
    }


def json_fields():
    values = (doctor.Check,)
    fields = {f"{kind.__name__} of inspection": sorted(names) for kind, names in info.NAMES.items()}
    fields |= {f"{kind.__name__} of commands": sorted(kind.__dataclass_fields__) for kind in values}
    for path in (PACKAGE / "management" / "zklock").glob("*.py"):
        if names := written_keys(path.read_text()):
            fields[f"zklock {path.stem.rstrip('_')}"] = sorted(names)
    fields["an incident"] = sorted(Split(host="h").describe())
    fields["doctor --incident"] = sorted(keys_in(ast.parse(inspect.getsource(verdict.as_json))))
    return fields


def written_keys(source):
    keys = set()
    for node in ast.walk(ast.parse(source)):
        is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("write_json", "write_answer")
        if is_call or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _ANSWERS):
            keys |= keys_in(node)
    return keys


_ANSWERS = ("answer", "counts", "events", "more", "report", "rows", "waits")


def keys_in(tree):
    dicts = (node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    return {str(key.value) for node in dicts for key in node.keys if isinstance(key, ast.Constant)}


def metrics():
    registry = CollectorRegistry()
    families = {}
    for made in Metrics(registry)._made:
        for family in made.describe():
            labels = getattr(made, "_labelnames", None) or getattr(family, "_labelnames", ())
            families[family.name] = f"{family.type}({', '.join(labels)})"
    return families


def traces():
    return sorted(set(re.findall(r'"(zklock\.\w+)"', (PACKAGE / "contrib/otel/spans.py").read_text())))


def migrations():
    paths = sorted(PACKAGE.rglob("migrations/0*.py"))
    return {str(path.relative_to(PACKAGE)): hashlib.sha256(path.read_bytes()).hexdigest()[:32] for path in paths}


def columns():
    made = {}
    for field in (model.ExactCharField(max_length=9), model.FencingTokenField()):
        _name, where, _, options = field.deconstruct()
        made[type(field).__name__] = f"{where} {json.dumps(options, sort_keys=True)}"
    made["collations"] = " ".join(re.findall(r'"(utf8mb4_\w+)"', inspect.getsource(model.ExactCharField)))
    return made


def permissions():
    return sorted([*(f"{action}_lock" for action in Lock._meta.default_permissions), *dict(Lock._meta.permissions)])


def proto():
    file = lock_coordinator_pb2.DESCRIPTOR
    kinds = {getattr(FieldDescriptor, name): name[5:].lower() for name in vars(FieldDescriptor) if name[:5] == "TYPE_"}
    made = {
        name: {field.name: f"{field.number} {kinds[field.type]}" for field in message.fields}
        for name, message in file.message_types_by_name.items()
    }
    enums = [*file.enum_types_by_name.values(), *lock_coordinator_pb2.LeaseState.DESCRIPTOR.enum_types]
    made |= {kind.full_name: {value.name: value.number for value in kind.values} for kind in enums}
    for service in file.services_by_name.values():
        source = (PACKAGE / "contrib/leases/v1/lock_coordinator.proto").read_text()
        calls = re.findall(r"rpc (\w+)\((.*?)\) returns \((.*?)\);", source)
        assert {name for name, _, _ in calls} == {method.name for method in service.methods}
        made[service.full_name] = {name: f"{request} -> {reply}" for name, request, reply in calls}
    return made


def http():
    described = json.loads((PACKAGE / "contrib/leases/openapi.json").read_text())
    made = {path: sorted(set(calls) - {"parameters"}) for path, calls in described["paths"].items()}
    for name, schema in described["components"]["schemas"].items():
        required = schema.get("required", ())
        made[name] = {
            field: f"{of['type']}{', required' * (field in required)}" for field, of in schema["properties"].items()
        }
    return made


def answers():
    codes = {code.slug: f"{code.grpc} {code.http} {dict(code.headers)}" for code in Code}
    codes |= {code: str(status) for status, (code, _) in views._ANSWERS.items()}
    late = LockBusy()
    late.not_rolled_back = True
    for error in (LockBusy(), ZooKeeperUnavailable(), LockLost(), late):
        answered = responses.answer(RequestFactory().get("/", headers={"accept": "application/json"}), error)
        body = json.loads(answered.content)
        codes[body["code"]] = f"{answered.status_code} {sorted(body)} Retry-After: {answered.get('Retry-After')}"
    return {**codes, "header of a signed token": views.HEADER}


def around_celery():
    made = {}
    for node in ast.walk(ast.parse(Path(events.__file__).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_send":
            made[f"event {ast.literal_eval(node.args[0])}"] = sorted(str(keyword.arg) for keyword in node.keywords)
    tree = ast.parse(Path(control.__file__).read_text())
    made["inspect zklocks"] = sorted({control.zklocks.__name__, *keys_in(tree)})
    return made


def entry_points():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    groups = config["options.entry_points"].items()
    made = [f"{group}: {line}" for group, text in groups for line in text.split("\n") if line]
    return [*made, *(f"extra: {name}" for name in config["options.extras_require"])]


def loggers():
    sources = (path.read_text() for path in PACKAGE.rglob("*.py"))
    return sorted({name for source in sources for name in re.findall(r'\bLogger\("([\w.]+)"', source)})


def tables():
    kinds = [kind for app in ("zklock_fences", "zklock_events") for kind in apps.get_app_config(app).get_models()]
    return {kind._meta.db_table: sorted(str(field.column) for field in kind._meta.local_fields) for kind in kinds}


FACTS = {
    "imports": lambda: {module: sorted(names) for module, names in public().items()},
    "modules": apps_and_modules,
    "attributes of classes": attributes,
    "arguments of functions": parameters,
    "options of locks": options,
    "words of options": words,
    "signals": signal_arguments,
    "settings": setting_keys,
    "system checks": check_ids,
    "permissions": permissions,
    "sub-commands": sub_commands,
    "exit codes": lambda: {code.name: int(code) for code in ExitCode},
    "JSON": json_fields,
    "metrics": metrics,
    "traces": traces,
    "loggers": loggers,
    "migrations": migrations,
    "tables": tables,
    "fields of models": columns,
    "gRPC": proto,
    "HTTP": http,
    "codes of answers": answers,
    "events and commands of Celery": around_celery,
    "entry points and extras": entry_points,
}
