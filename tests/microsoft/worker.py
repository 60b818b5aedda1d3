"""The process that .NET runs in: it answers each request, a line of JSON, with a line of JSON.

It is apart from pytest, because the runtime takes over signals, and finds its parts by environment
variables and a library path. It needs only Python's own library and the folder that `fetch` makes.
"""

import importlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.microsoft.trees import declared, mistakes

DOM = "Microsoft.SqlServer.TransactSql.ScriptDom"
PARSERS = {"130": "TSql130Parser", "140": "TSql140Parser", "150": "TSql150Parser"}
_POSITIONS = (
    *("ScriptTokenStream", "FirstTokenIndex", "LastTokenIndex", "FragmentLength"),
    *("StartOffset", "StartLine", "StartColumn"),
)
"""Properties of a tree that are layout."""


class Worker:
    """Microsoft's tools, each loaded when it is first used."""

    def __init__(self, folder: Path) -> None:
        self._tools = folder / "mssqlcli" / "mssqltoolsservice" / "bin"
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            framework = {"name": "Microsoft.NETCore.App", "version": "3.1.0"}
            json.dump({"runtimeOptions": {"framework": framework}}, config)
            config.flush()
            coreclr = importlib.import_module("clr_loader").get_coreclr(
                runtime_config=config.name, dotnet_root=str(folder / "dotnetcore2" / "bin")
            )
            importlib.import_module("pythonnet").set_runtime(coreclr)
            self._clr = importlib.import_module("clr")
        self._serialize: Any = None

    def _load(self, assembly: str, namespace: str = "") -> Any:
        self._clr.AddReference(str(self._tools / f"{assembly}.dll"))
        return importlib.import_module(namespace or assembly)

    def _parsed(self, grammar: str) -> Any:
        """A function: text -> its tree and the errors."""
        parser = getattr(self._load(DOM), PARSERS[grammar])(True)
        reader = importlib.import_module("System.IO").StringReader
        return lambda text: parser.Parse(reader(text), None)

    def scriptdom(self, grammar: str, texts: Sequence[str]) -> list[list[str]]:
        """The syntax errors of each text."""
        parsed = self._parsed(grammar)
        return [_errors(parsed(text)[1]) for text in texts]

    def trees(self, texts: Sequence[str]) -> list[list[Any]]:
        """Of each text: its syntax errors, the mistakes in its tree."""
        parsed = self._parsed("150")
        found: list[list[Any]] = []
        for text in texts:
            tree, errors = parsed(text)
            found_mistakes = [] if errors.Count else mistakes(json.loads(self._written(tree)))
            found.append([_errors(errors), found_mistakes])
        return found

    def tree(self, text: str) -> Any:
        """The syntax tree of a text, by the newest grammar."""
        return json.loads(self._written(self._parsed("150")(text)[0]))

    def sqlparser(self, texts: Sequence[str]) -> list[list[str]]:
        """The errors of each text by Management Studio's parser."""
        namespace = "Microsoft.SqlServer.Management.SqlParser.Parser"
        parser = self._load("Microsoft.SqlServer.SqlParser", namespace).Parser
        return [[error.Message for error in parser.Parse(text).Errors] for text in texts]

    def binder(self, made: Sequence[str], texts: Sequence[tuple[str, str]]) -> list[str]:
        """The names that are not defined, in the objects and in the texts, (name, text).

        A statement that creates something is added as it is; all others of a text go into a
        procedure, whose parameters are the variables that the text does not declare.
        """
        for assembly in ("Microsoft.Data.Tools.Schema.Sql", "Microsoft.SqlServer.Dac"):
            self._clr.AddReference(str(self._tools / f"{assembly}.dll"))
        dac = self._load("Microsoft.SqlServer.Dac.Extensions", "Microsoft.SqlServer.Dac.Model")
        model = dac.TSqlModel(dac.SqlServerVersion.Sql150, dac.TSqlModelOptions())
        parsed = self._parsed("150")
        found: list[str] = []
        refused: set[str] = set()

        def add(name: str, text: str) -> None:
            try:
                model.AddObjects(text)
            except Exception as error:  # noqa: BLE001 - .NET's own classes
                lines = str(error).split("\n   at ")[0].strip().split("\n")
                # It repeats what it refused once with each later object.
                new = [line.strip() for line in lines[1:] if line.strip() not in refused]
                refused.update(new)
                found.extend(f"{name}: {line}" for line in new if line)

        for text in made:
            add("", text)
        objects: dict[str, str] = {}
        for name, text in texts:
            tree, errors = parsed(text)
            if not errors.Count:
                rest = _extract_objects(objects, name, tree, text)
                if _COMMENT.sub("", rest).replace(_NOTHING, "").strip("; \n"):
                    add(name, _procedure(name, rest, declared(json.loads(self._written(tree)))))
        for text, name in objects.items():
            add(name, text)
        return found + [str(one.Message) for one in model.Validate()]

    def _written(self, tree: Any) -> str:
        """The tree as JSON: types, names, values; no layout and no comments."""
        if self._serialize is None:
            self._serialize = self._serializer()
        written = str(self._serialize(tree))
        return written.replace(f', {DOM}"', '"').replace(f'"$type":"{DOM}.', '"$type":"')

    def _serializer(self) -> Any:
        newtonsoft = self._load("Newtonsoft.Json")
        resolver = importlib.import_module(
            "Newtonsoft.Json.Serialization"
        ).DefaultContractResolver()
        fragment = self._clr.GetClrType(self._load(DOM).TSqlFragment)
        for kind in fragment.Assembly.GetTypes():
            if fragment.IsAssignableFrom(kind) and not kind.IsAbstract:
                properties = resolver.ResolveContract(kind).Properties
                for name in _POSITIONS:
                    if (one := properties.GetClosestMatchProperty(name)) is not None:
                        one.Ignored = True
        settings = newtonsoft.JsonSerializerSettings()
        settings.ContractResolver = resolver
        settings.TypeNameHandling = newtonsoft.TypeNameHandling.Objects
        settings.NullValueHandling = newtonsoft.NullValueHandling.Ignore
        converters = importlib.import_module("Newtonsoft.Json.Converters")
        settings.Converters.Add(converters.StringEnumConverter())
        return lambda tree: newtonsoft.JsonConvert.SerializeObject(tree, settings)


_COMMENT = re.compile(r"--(?: [^\n]*)?$|/\*.*?\*/", re.DOTALL | re.MULTILINE)
_NOTHING = "PRINT 1;"
_LEFT_OUT = ("CreateSchemaStatement", "CreateRoleStatement", "RevokeStatement")
"""Of what the binder knows already, and what it refuses in a procedure."""
_LITERAL = re.compile(r"'(?:[^']|'')*'")


def _extract_objects(objects: dict[str, str], name: str, tree: Any, text: str) -> str:
    """Move what the text creates to the objects; the rest of the text."""
    rest = text
    for creating_statement in _creating_statements(tree.Batches):
        start, length = creating_statement.StartOffset, creating_statement.FragmentLength
        rest = rest[:start] + _NOTHING.ljust(length) + rest[start + length :]
        kind = type(creating_statement).__name__
        if kind == "AlterTableAddTableElementStatement":
            _add_columns(objects, creating_statement, text)
        elif kind not in _LEFT_OUT:
            objects.setdefault(_create_statement(text, creating_statement), name)
    return rest


def _creating_statements(batches: Any) -> Iterator[Any]:
    """Those that create an object, add to it or are left out, also in an IF or a BEGIN. A temporary
    table is only possible in a procedure: it stays in the text."""
    inside: list[Any] = [one for batch in batches for one in batch.Statements]
    while inside:
        one = inside.pop(0)
        kind = type(one).__name__
        if kind == "CreateTableStatement" and one.SchemaObjectName.BaseIdentifier.Value[0] == "#":
            continue
        if kind.startswith("Create") or kind in ("AlterTableAddTableElementStatement", *_LEFT_OUT):
            yield one
        elif kind == "IfStatement":
            inside += [part for part in (one.ThenStatement, one.ElseStatement) if part is not None]
        elif kind == "BeginEndBlockStatement":
            inside += list(one.StatementList.Statements)


def _create_statement(text: str, statement: Any) -> str:
    """The statement that creates an object, as DacFx accepts it."""
    start = statement.StartOffset
    made = text[start : start + statement.FragmentLength]
    return re.sub(r"\bCREATE OR ALTER\b", "CREATE", made, count=1)


def _add_columns(objects: dict[str, str], adding: Any, text: str) -> None:
    """ALTER TABLE ... ADD: the columns move to CREATE TABLE, because DacFx accepts only that."""
    part = adding.Definition
    columns = text[part.StartOffset : part.StartOffset + part.FragmentLength]
    table = text[adding.StartOffset :].partition("ALTER TABLE ")[2].partition(" ")[0]
    for made in [one for one in objects if one.startswith(f"CREATE TABLE {table} (")]:
        head, close, tail = made.rpartition(")")
        name = objects.pop(made)
        objects[made if columns in head else f"{head}, {columns}{close}{tail}"] = name


def _procedure(name: str, text: str, own: set[str]) -> str:
    plain = _LITERAL.sub("''", _COMMENT.sub("", text))
    used = dict.fromkeys(one.lower() for one in re.findall(r"(?<![@\w])@\w+", plain))
    bound = [f"{one} sql_variant" for one in used if one not in own]
    return f"CREATE PROCEDURE [of].[{name}] {', '.join(bound)}\nAS\nBEGIN\n{text}\nEND"


def _errors(errors: Any) -> list[str]:
    return [f"line {error.Line}: {error.Message}" for error in errors]


def main() -> None:
    """Answer requests until there are no more."""
    worker = Worker(Path(sys.argv[1]))
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, method)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
