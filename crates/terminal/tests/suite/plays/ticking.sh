python3 -c '
import threading, time
def tick():
    while True:
        time.sleep(0.02)
        end = time.thread_time() + 0.0004
        while time.thread_time() < end: pass
threading.Thread(target=tick, daemon=True).start()
print("took <" + input("What is your name? ") + ">")'
exec sleep 1000
