# needs: java
# A virtual machine with its compiler threads; a single source file where there is a compiler.
java -version 2>/dev/null
cat >Main.java <<'END'
public class Main { public static void main(String[] a) throws Exception {
  Thread t = new Thread(() -> System.out.println("thread")); t.start(); t.join(); } }
END
if command -v javac >/dev/null; then
  javac Main.java
  [ "$(java -cp . Main)" = thread ]
fi
