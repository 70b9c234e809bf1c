"""A message that is longer than the screen, while it is edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.formatted_text.utils import fragment_list_len, fragment_list_to_text
from prompt_toolkit.layout.dimension import Dimension, to_dimension
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import Output


class TallLinesCut(Processor):
    """Shows the end alone of a tall line that the cursor is not in.

    The editor shows a line whole or not at all, unless the cursor is in it: a line taller than
    the screen would leave it blank.

    Args:
        output: the screen.
    """

    def __init__(self, output: Output) -> None:
        self._output = output

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """What is shown of a line."""
        fragments, size = transformation_input.fragments, self._output.get_size()
        most = size.rows * size.columns // 4  # characters, of which some take two cells
        edited = transformation_input.lineno == transformation_input.document.cursor_position_row
        if edited or fragment_list_len(fragments) <= most:
            return Transformation(fragments)
        return Transformation([("", "…" + fragment_list_to_text(fragments)[-most:])])


def keep_screen(session: PromptSession[str]) -> None:
    """Let the input take two thirds of the screen at most: what was said last stays in sight."""
    window = session.layout.current_window
    usual = window.height

    def height() -> Dimension:
        wanted, size = to_dimension(usual), session.output.get_size()
        most = max(size.rows * 2 // 3, wanted.min, 1)
        needed = window.content.preferred_height(
            size.columns, most + 1, True, window.get_line_prefix
        )
        if session.app.is_done or needed is None or needed <= most:
            return wanted
        return Dimension(min=wanted.min, preferred=most)

    window.height = height
