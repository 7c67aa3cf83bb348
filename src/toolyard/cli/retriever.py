"""Serve the passages of a text corpus to tools and trainers that search, as Search-R1's retriever does."""

from __future__ import annotations

import argparse
import dataclasses
import time

import uvicorn

from toolyard import logs
from toolyard.cli._settings import add_knob
from toolyard.gate import Allowed, Gate
from toolyard.retriever import OPTIONS, TOPK, TOPK_MOST, Retriever
from toolyard.serving import are_local, listen, protocol_of, tune_process
from toolyard.settings import Settings, SettingsError, flag_of, is_loopback
from toolyard.tools.corpus import read_corpus

HELP = "serve a text corpus to search_retrieval, as Search-R1's retriever does"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "corpus",
        metavar="CORPUS",
        help='a .jsonl file of {"id", "contents"} or {"title", "text"}, a .txt or .md file whose paragraphs are '
        "separated by blank lines, any of them .gz, or a folder of such files",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks a free one [8000]")
    parser.add_argument("--topk", type=int, default=TOPK, help=f"passages for a query that does not say [{TOPK}]")
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="listen on a non-loopback address: everybody who reaches it may ask",
    )
    for knob in dataclasses.fields(Settings):
        if knob.name in Allowed.__dataclass_fields__:
            add_knob(parser, knob, flag_of(knob.name))


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.topk <= TOPK_MOST:
        raise SettingsError(f"--topk is {args.topk}; it must be from 1 to {TOPK_MOST}")
    if not (is_loopback(args.host) or args.allow_anonymous):
        raise SettingsError(
            f"{args.host} can be reached from other machines, and no key is asked for. If everybody who "
            f"can reach it may use it, say --allow-anonymous"
        )
    settings = Settings.read(vars(args))
    logs.configure("text", "info")
    with listen(args.host, args.port, is_setting=False) as socket:
        begun = time.monotonic()
        corpus = read_corpus(args.corpus)
        tune_process()
        gate = Gate(Retriever(corpus, topk=args.topk), OPTIONS, settings.pick(Allowed))
        if are_local([socket]):
            gate.require_known_host()
        config = uvicorn.Config(
            gate,
            http=protocol_of(settings),
            ws="none",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=10,
            log_config=None,
        )
        host = f"[{args.host}]" if ":" in args.host else args.host
        url = f"http://{host}:{socket.getsockname()[1]}/retrieve"
        print(f"{len(corpus):,} passages of {args.corpus}, read in {time.monotonic() - begun:.1f} s", flush=True)
        print(f"Retriever at {url}\n\n  RETRIEVER_URL={url} toolyard serve --tools search_retrieval", flush=True)
        uvicorn.Server(config).run(sockets=[socket])
    return 0
