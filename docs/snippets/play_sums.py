from toolyard import Client

with Client("http://127.0.0.1:8080") as client:
    sums = client.environments.get("sums")
    with sums.session(split="train", index=3) as session:
        print(session.get_prompt()[0].text)
        output = session.call_tool("submit", {"answer": 7})
        print(output.reward, output.finished)
