// Command containerd-shim-runsc-v1 is gVisor's shim for a containerd before 2.0, which wants to read the address of a
// started shim alone, where the shim writes an object around it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	own, err := os.Executable()
	if err != nil {
		fail(err)
	}
	var output bytes.Buffer
	shim := exec.Command(filepath.Join(filepath.Dir(own), "shim"), os.Args[1:]...)
	shim.Stdin, shim.Stdout, shim.Stderr = os.Stdin, &output, os.Stderr
	if err := shim.Run(); err != nil {
		os.Stdout.Write(output.Bytes())
		fail(err)
	}
	var started struct{ Address string }
	if json.Unmarshal(output.Bytes(), &started) == nil && started.Address != "" {
		fmt.Print(started.Address)
		return
	}
	os.Stdout.Write(output.Bytes())
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	os.Exit(1)
}
