from toolyard import Client

with Client("http://127.0.0.1:8080") as client:
    weather = client.environments.get("weather")
    with weather.session(split="train", index=0, secrets={"WEATHER_KEY": "s3cret"}) as session:
        print(session.call_tool("ask_service").text)
