from toolyard import Client

with Client("http://127.0.0.1:8080") as client:
    counter = client.environments.get("counter")
    with counter.session(split="train", index=2) as session:
        session.call_tool("add", {"n": 4})
        for n, fork in enumerate(session.fork(4), start=1):
            with fork:
                shown = fork.call_tool("add", {"n": n}).text
                print(shown, fork.call_tool("submit").reward)
