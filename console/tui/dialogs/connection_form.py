"""A new connection: written to the configuration file, never with a password in clear."""

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from console.config import writing
from console.config.writing import WrongFieldError
from console.errors import UsageError
from console.rights import BY_WORD
from console.tui.dialogs.dialog import Dialog
from console.tui.text import plain, said
from console.tui.widgets.field import Field
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone

_SOURCES = (
    ("", "left to the driver"),
    ("prompt", "typed"),
    ("env", "environment"),
    ("keyring", "keyring"),
    ("command", "command"),
)
_SOURCE_WORDS = {
    "": "~/.pgpass, a service file, or none at all",
    "prompt": "asked for here, unseen, each time the console opens",
    "env": "the variable that holds it",
    "keyring": "SERVICE/USER in the system's keyring (wants dbq-console[keyring])",
    "command": "a program whose first line of output it is, such as: pass show db1/orders",
}
_RIGHTS_WORDS = {
    "read-only": "look only; the console itself refuses all else",
    "operator": "act on messages: requeue, release, purge, archive, restore, maintain",
    "admin": "also install, adopt, resize, upgrade, uninstall",
}


class ConnectionFormDialog(Dialog[str]):
    """Gives the name of the profile that was written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('')", "back", show=False, tooltip="nothing is written"),
        Binding("enter", "write", "write", show=False, tooltip="write it to the file"),
    ]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def compose(self) -> ComposeResult:
        """What a profile must say; the rest can be added to the file by hand."""
        with VerticalScroll(id="connection-form", classes="dialog", can_focus=False) as panel:
            panel.border_title = "A new connection"
            panel.border_subtitle = "Enter writes it · Escape: nothing is written"
            yield Field("name", help="as --profile calls it")
            yield Field(
                "url",
                placeholder="postgresql+psycopg://user@host:5432/database",
                help="without a password; ${env:NAME} may stand in any part",
            )
            yield Field("password", choices=_SOURCES, help=_SOURCE_WORDS[""])
            yield Field("source", "", help="")
            rights = [(word, word) for word in BY_WORD]
            yield Field("rights", choices=rights, help=_RIGHTS_WORDS["read-only"])
            production = [("no", "no"), ("yes", "yes: said everywhere, stricter confirmations")]
            yield Field("production", choices=production)
            yield Paragraph(Text(f"Goes to {plain(str(self._path))}"), id="form-words")

    def on_mount(self) -> None:
        """The name has the keys."""
        self._field("source").display = False
        self.set_focus(self._field("name").control)

    def _field(self, name: str) -> Field:
        return self.query_one(f"#field-{name}", Field)

    @property
    def values(self) -> dict[str, object]:
        """The profile as the file will have it."""
        found: dict[str, object] = {"url": self._field("url").value.strip()}
        source, text = self._field("password").value, self._field("source").value.strip()
        if source == "prompt":
            found["password"] = source
        elif source == "env":
            found["password"] = f"${{env:{text}}}"
        elif source:
            found["password"] = f"{source}:{text}"
        found["rights"] = self._field("rights").value
        if self._field("production").value == "yes":
            found["production"] = True
        return found

    def on_field_changed(self, event: Field.Changed) -> None:
        """What is wrong is said by the field that it is about, at once."""
        field, value = event.field, event.field.value
        if field.field_name == "password":
            field.explain(_SOURCE_WORDS[value])
            self._field("source").display = value in {"env", "keyring", "command"}
        if field.field_name == "rights":
            field.explain(_RIGHTS_WORDS[value])
        self._check()

    def _check(self, *, whole: bool = False) -> bool:
        """Whether it can be written. What nobody has touched yet is not complained about, unless
        `whole`."""
        wrong: dict[str, str] = {}
        try:
            writing.check_name(self._field("name").value.strip())
        except WrongFieldError as error:
            wrong["name"] = error.words
        for key, value in self.values.items():
            try:
                writing.check({key: value})
            except WrongFieldError as error:
                name = "source" if key == "password" and value != "prompt" else key
                wrong[name] = error.words
        for name in ("name", "url", "source"):
            field = self._field(name)
            told = field.touched or whole
            field.complain(wrong.get(name, "") if told and field.display else "")
        return not wrong

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field writes, as elsewhere."""
        event.stop()
        self.action_write()

    def action_write(self) -> None:
        """To the file, whole or not at all."""
        if not self._check(whole=True):
            wrong = [field for field in self.query(Field) if field.is_wrong and field.display]
            if wrong:
                self.set_focus(wrong[0].control)
            return
        name = self._field("name").value.strip()
        try:
            writing.add_profile(self._path, name, self.values)
        except WrongFieldError as error:
            self._field("name" if error.key == "name" else "url").complain(error.words)
        except UsageError as error:
            words = self.query_one("#form-words", Paragraph)
            words.say(Text(said(error), tone(words, "critical")))
        else:
            self.dismiss(name)
