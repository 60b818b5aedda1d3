"""How far an action is, while it runs."""

from rich.text import Text

from console import formats
from console.tui.running import Running
from console.tui.text import plain
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_FULL, _LEFT = "━", "─"
_WIDEST = 60


class ProgressView(Words):
    """A bar where a total is known, the ledger so far, and what may be pressed."""

    def draw(self, running: Running, now: float) -> None:
        """As it is now."""
        told = running.told
        done = 0 if told is None else told.done
        total = running.planned.count if told is None else told.total
        text = Text()
        text.append(f"{running.name}{running.state}\n\n", tone(self, "strong"))
        if total:
            text.append_text(self._bar(min(1.0, done / total)))
        counts = f"{done:,} of {total:,}" if total else f"{done:,}"
        text.append(f"{counts}{self._pace(running, done, total, now)}\n")
        if told is not None and told.ledger is not None:
            ledger = told.ledger
            text.append(
                f"{ledger.out:,} done, {ledger.skipped_count:,} skipped, "
                f"{ledger.failed_count:,} failed\n"
            )
            for why, count in (*ledger.skipped.items(), *ledger.failed.items()):
                text.append(f"  {count:,}: {plain(why)}\n", tone(self, "quiet"))
        if told is not None and told.words:
            text.append(f"{plain(told.words)}\n", tone(self, "quiet"))
        self.say(text)

    def _bar(self, share: float) -> Text:
        width = max(10, min(_WIDEST, self.app.size.width - 6))
        full = int(share * width)
        bar = Text(_FULL * full, tone(self, "good"))
        bar.append(_LEFT * (width - full), tone(self, "quiet"))
        return bar.append(f" {share:.0%}\n")

    def _pace(self, running: Running, done: int, total: int | None, now: float) -> str:
        """How fast so far, and how long the rest takes at that."""
        seconds = now - running.began_at
        if seconds < 1 or not done:
            return ""
        words = f", {formats.rate(done / seconds)} a second"
        if total and done < total and not running.control.paused:
            words += f", about {formats.duration((total - done) * seconds / done)} left"
        return words
