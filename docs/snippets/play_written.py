import httpx2

task = {"environment": "capitals", "split": "train", "index": 1}
for text in ["", "<lookup>Peru</lookup>", '<tool_call>{"name": "answer", "arguments": {"city": "Lima"}}</tool_call>']:
    body = {"trajectory_ids": ["t1"], "actions": [text], "extra_fields": [task]}
    told = httpx2.post("http://127.0.0.1:8080/get_observation", json=body).json()
    print(told["observations"][0], told["dones"][0], told["valids"][0])
