import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from toolyard.core.errors import WorkspaceError
from toolyard.sandboxes import open_sandbox, usual_limits


async def tour():
    async with await open_sandbox() as box:
        # Files: paths are relative to the workspace, /home/work.
        await box.write("numbers.txt", b"3\n4\n")
        print(await box.read("numbers.txt"), [entry.name for entry in await box.list()])

        # Python that keeps its variables.
        executed = await box.exec("numbers = [int(line) for line in open('numbers.txt')]\nsum(numbers)")
        print(executed.value, executed.error)
        executed = await box.exec("numbers[2]")
        print(executed.error.name, executed.error.message)

        # A shell that keeps its directory and variables.
        await box.shell("mkdir -p deep && cd deep && WHO=world")
        finished = await box.shell('echo "hello $WHO from $PWD"')
        print(finished.exit_code, finished.stdout)

        # One program, from its start to its end.
        finished = await box.run(["sort", "-r"], stdin=b"a\nb\n", env={"LC_ALL": "C"})
        print(finished.exit_code, finished.stdout)


def greeting(folder):
    folder.mkdir()
    (folder / "greet.sh").write_text("echo hello > out.txt; ln -s /etc/passwd secrets\n")


async def folders(here):
    greeting(here / "source")
    async with await open_sandbox() as box:
        await box.put(here / "source", "in")  # a folder of the host, or a file, or {"path": "text"}
        await box.shell("cd in && sh greet.sh")
        print("left out:", await box.get("in", here / "target"))
        print(sorted(os.listdir(here / "target")))

        archive = await box.pack("in")  # tar, as bytes
        await box.unpack(archive, "copy")  # tar, compressed or not
        print([entry.name for entry in await box.list("copy")])


async def limits():
    async with await open_sandbox(replace(usual_limits(), wall_seconds=1, memory_bytes=256 * 2**20)) as box:
        await box.exec("kept = 'still here'")
        executed = await box.exec("while True: pass")
        print(executed.killed_by, executed.timed_out, executed.error.name, executed.state_lost)
        print((await box.exec("kept")).value)
        executed = await box.exec("import os; os._exit(3)")
        print(executed.error.message, executed.state_lost)
        print((await box.exec("kept")).error.name)
        try:
            await box.read("../../etc/passwd")
        except WorkspaceError as error:
            print(error)


async def branches():
    async with await open_sandbox() as box:
        await box.exec("path = ['start']; open('log.txt', 'w').write('start')")
        left, right = await box.fork(2)
        async with left, right:
            await left.exec("path.append('left'); open('log.txt', 'w').write('left')")
            await right.exec("path.append('right')")
            print((await left.exec("path")).value, await left.read("log.txt"))
            print((await right.exec("path")).value, await right.read("log.txt"))
        print((await box.exec("path")).value, await box.read("log.txt"))


async def main():
    await tour()
    with tempfile.TemporaryDirectory() as here:
        await folders(Path(here))
    await limits()
    await branches()


asyncio.run(main())
