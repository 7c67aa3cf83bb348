import base64

from toolyard import Environment, ImageBlock, TextBlock, ToolOutput, tool

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Returns(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return [TextBlock(text="What is this?"), ImageBlock(data=base64.b64encode(DOT).decode(), mimeType="image/png")]

    @tool
    def text(self) -> str:
        """Text becomes one text block."""
        return "a line"

    @tool
    def data(self) -> dict[str, int]:
        """Any JSON value becomes a text block with its JSON."""
        return {"rows": 3}

    @tool
    def image(self) -> bytes:
        """PNG, JPEG, GIF or WebP bytes, or a Pillow image, become an image block."""
        return DOT

    @tool
    def several(self) -> list[TextBlock | bytes]:
        """A list with blocks and images in it becomes these blocks."""
        return [TextBlock(text="the dot:"), DOT]

    @tool
    def everything(self) -> ToolOutput:
        """ToolOutput says it all: what the model reads, what the trainer gets, and whether this is the end."""
        return ToolOutput(
            blocks=[TextBlock(text="well done")],
            reward=1.0,
            finished=True,
            metadata={"seconds": 0.2},
        )
