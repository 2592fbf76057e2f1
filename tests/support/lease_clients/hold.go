// Hold a lock until a line is read, or the lock is lost: ADDRESSES KEY TERM_MS WAIT_MS, which may be Infinity.
// The same client waits for the lock ALSO, if it is given as the fifth argument.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	zklock "github.com/django-zklock/django-zklock/clients/go"
	"google.golang.org/grpc"
)

func milliseconds(text string) time.Duration {
	number, _ := strconv.Atoi(text)
	return time.Duration(number) * time.Millisecond
}

func main() {
	client := zklock.New(strings.Split(os.Args[1], ","), grpc.WithInsecure())
	defer client.Close()
	client.ClientID = "holder"
	line := make(chan struct{})
	go func() { bufio.NewReader(os.Stdin).ReadString('\n'); close(line) }()
	wait := milliseconds(os.Args[4]) // 0 for Infinity, too
	options := zklock.Options{
		Term: milliseconds(os.Args[3]), Wait: wait, NoWait: os.Args[4] == "0",
		OnRequest: func(reason string) { fmt.Println("wanted", reason) },
	}
	if len(os.Args) > 5 {
		go client.WithLock(context.Background(), os.Args[5], zklock.Options{},
			func(context.Context, *zklock.Lease) error { fmt.Println("also held"); return nil })
	}
	err := client.WithLock(context.Background(), os.Args[2], options,
		func(ctx context.Context, lease *zklock.Lease) error {
			fmt.Println("held", lease.Token)
			select {
			case <-line:
			case <-ctx.Done():
			}
			return nil
		})
	names := map[error]string{zklock.ErrBusy: "LockBusy", zklock.ErrTimeout: "LockTimeout", zklock.ErrLost: "LockLost"}
	for kind, name := range names {
		if errors.Is(err, kind) {
			fmt.Printf("%s: %v\n", name, err)
			return
		}
	}
	if err != nil {
		fmt.Println("Error:", err)
		return
	}
	fmt.Println("released")
}
