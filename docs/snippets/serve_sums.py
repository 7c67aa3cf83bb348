from sums import Sums

from toolyard import Server

if __name__ == "__main__":
    Server([Sums]).run(host="127.0.0.1", port=8080)
